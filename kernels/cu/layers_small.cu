// All layers of a step for up to 8 rows, where a layer is so small that its weights are always
// there in time: only what blocks wait for takes time, so blocks that need each other's results
// most are near each other.
//
// A cluster of 8 blocks has a kv head: its queries, keys and values, its attention, and the slices
// of the product behind it (o) that read what it attended. Another has one slice of down: the gates
// and ups that this slice reads, and the slice. Within a cluster results are sent to shared memory,
// and arrive at a barrier there. Sums of slices go from cluster to cluster as words with marks (see
// layers.cu), two times a layer, and each cluster adds them up, in order, to a stream of its own,
// an eighth of which each block has in registers and shared memory. The chunks of a text go to as
// many blocks of the cluster as there are for it; the first of them merges. Of two texts and more
// half of them go to a second team, if the card has room for it: another cluster for each kv head.
//
// The sums are those of `matmul_few` and `attend_chunk`, in the same order: the bits are equal. No
// place is written again before all have read it: who writes needs what was made of it by all (the
// marked sums, which have two places that are used in turn, what was made of the other).
#include "layers_clusters.cuh"

#ifdef HOPPER
KERNEL __launch_bounds__(THREADS, 1) layers_small(const Layers p) { layers_all(p); }
#else
KERNEL layers_small(const Layers p) {}
#endif
