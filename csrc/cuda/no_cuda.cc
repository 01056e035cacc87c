// The CUDA device while there is no backend for it: the same symbol, an error that says what else
// would be lacking.
#include "base/error.h"
#include "cuda/build.h"
#include "cuda/driver.h"
#include "ops/backend.h"

namespace pb {

std::unique_ptr<Backend> make_cuda_backend() {
  const cuda::Build& build = cuda::this_build();
  std::string besides;
  if (build.toolkit.empty()) {
    besides =
        "this build was made without CUDA (" + build.problem + "): build it with PYBATCHER_CUDA=ON";
  }
  const cuda::Driver driver = cuda::probe(build);
  if (!driver.problem.empty()) besides += (besides.empty() ? "" : "; ") + driver.problem;
  throw Error(ErrorCode::kConfig,
              "device is 'cuda', for which this version of pybatcher has no backend yet; use "
              "device='cpu'" +
                  (besides.empty() ? "" : ". Besides, " + besides));
}

}  // namespace pb
