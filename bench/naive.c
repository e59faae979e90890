/* The yardstick of `reprise bench engine`: what one would write first. For every window an automaton of its own
   walks the events of that window; a match consumes its events. Types 0, 1, .. are the steps of the pattern. */
#include <stdint.h>

int64_t count_matches(const uint8_t *type, int64_t events, int64_t steps, int64_t size, int64_t slide) {
    int64_t matches = 0;
    for (int64_t opens = 0; opens < events; opens += slide) {
        int64_t closes = opens + size < events ? opens + size : events;
        int64_t state = 0;
        for (int64_t i = opens; i < closes; i++) {
            if (type[i] == state && ++state == steps) {
                matches++;
                state = 0;
            }
        }
    }
    return matches;
}
