// Light or dark as Airflow around us is, otherwise as the system asks. Runs before the page is drawn.
(function () {
  const system = matchMedia("(prefers-color-scheme: dark)");

  function airflow() {
    try {
      if (parent === window) return localStorage.getItem("theme");
      const classes = parent.document.documentElement.classList;
      return classes.contains("dark") ? "dark" : classes.contains("light") ? "light" : null;
    } catch {
      return null; // another site's frame, or no storage: nobody to follow
    }
  }

  function follow() {
    const wanted = airflow();
    const dark = wanted === "dark" || (wanted !== "light" && system.matches);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
  }

  follow();
  system.addEventListener("change", follow);
  try {
    if (parent !== window) {
      new MutationObserver(follow).observe(parent.document.documentElement, { attributeFilter: ["class"] });
    }
  } catch {
    // as above
  }
})();
