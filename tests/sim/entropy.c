/* The entropy of the simulation: getrandom(2) of this program gives numbers that follow from the variable OUTRIGGER_SIM_SEED.
 * Libraries take entropy from the kernel where Outrigger's own code takes it from its environment: tokio for the order in which
 * it wakes the receivers of a channel, the standard library for the order of maps. A definition in the program precedes that of
 * the C library. Without the variable it fails, as on a kernel that doesn't have the call. */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>

static uint64_t state;

ssize_t getrandom(void *buffer, size_t length, unsigned flags) {
    (void)flags;
    if (state == 0) {
        const char *seed = getenv("OUTRIGGER_SIM_SEED");
        if (seed == NULL) {
            errno = ENOSYS;
            return -1;
        }
        state = strtoull(seed, NULL, 10) * 2 + 1;
    }
    for (size_t i = 0; i < length; i++) {
        /* splitmix64 */
        uint64_t z = (state += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        ((unsigned char *)buffer)[i] = (unsigned char)(z ^ (z >> 31));
    }
    return (ssize_t)length;
}
