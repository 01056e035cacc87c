// The CUDA device where it is not built: the same symbol, a clear error.
#include "base/error.h"
#include "ops/backend.h"

namespace pb {

std::unique_ptr<Backend> make_cuda_backend() {
  throw Error(ErrorCode::kConfig,
              "device is 'cuda'; this build of pybatcher has no CUDA backend; use device='cpu'");
}

}  // namespace pb
