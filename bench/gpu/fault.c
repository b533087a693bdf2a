/* A libcuda.so that lets the real one do everything, but fails the 200th replay of a graph. */
#define _GNU_SOURCE
#include <dlfcn.h>

int cuGraphLaunch(void *graph, void *stream) {
  static int launches;
  static int (*real)(void *, void *);
  if (!real) real = (int (*)(void *, void *))dlsym(RTLD_NEXT, "cuGraphLaunch");
  return ++launches < 200 ? real(graph, stream) : 700; /* CUDA_ERROR_ILLEGAL_ADDRESS */
}
