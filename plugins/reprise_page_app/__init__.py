"""The Reprise page: its API over `spark_jobs/views`, and the files of its front end."""
