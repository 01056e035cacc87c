// Every kernel, for nvcc: what is not included here is in no build. (None is written yet.)
#include "cuda/kernels/device_code.h"
