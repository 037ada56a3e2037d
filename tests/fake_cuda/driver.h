/* driver.h - the fake CUDA driver's functions, hidden: cuda.h declares them for everybody, and they must not be found
 * but by the runtime's lookup. For driver.c and virtual.c. */
#ifndef FEEDD_FAKE_CUDA_DRIVER_H
#define FEEDD_FAKE_CUDA_DRIVER_H

#pragma GCC visibility push(hidden)
#include <cuda.h>
#pragma GCC visibility pop

#endif
