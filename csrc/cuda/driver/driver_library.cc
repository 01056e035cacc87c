#include "cuda/driver/driver_library.h"

#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace pb::cuda {

#ifdef _WIN32

DriverLibrary::DriverLibrary(const char* name)
    : handle_(LoadLibraryExA(name, nullptr, LOAD_LIBRARY_SEARCH_SYSTEM32)) {
  if (handle_ == nullptr) problem_ = name;
}

void* DriverLibrary::find(const char* name) const {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(handle_), name));
}

#else

DriverLibrary::DriverLibrary(const char* name) : handle_(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ != nullptr) return;
  problem_ = dlerror();
  if (problem_ == nullptr) problem_ = name;
}

void* DriverLibrary::find(const char* name) const { return dlsym(handle_, name); }

#endif

}  // namespace pb::cuda
