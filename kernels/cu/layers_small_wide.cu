// `layers_small` for up to 32 rows. A team has up to 16, and all clusters of its own: those that
// feed forward have two slices of down each, so that there are half as many. What one team makes
// the other does not wait for, and each block adds up and sends the rows of its team alone.
#define THREAD_ANEW
#define WIDE
#include "layers_clusters.cuh"

#ifdef HOPPER
KERNEL __launch_bounds__(THREADS, 1) layers_small_wide(const Layers p) { layers_all(p); }
#else
KERNEL layers_small_wide(const Layers p) {}
#endif
