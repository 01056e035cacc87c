#include "cuda/driver_library.h"

#include <dlfcn.h>

namespace pb::cuda {

DriverLibrary::DriverLibrary(const char* name) : handle_(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ != nullptr) return;
  problem_ = dlerror();
  if (problem_ == nullptr) problem_ = name;
}

void* DriverLibrary::find(const char* name) const { return dlsym(handle_, name); }

}  // namespace pb::cuda
