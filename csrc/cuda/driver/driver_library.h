// The driver's library, opened at run time: nothing links to it.
#pragma once

namespace pb::cuda {

#ifdef _WIN32
inline constexpr const char* kDriverLibrary = "nvcuda.dll";
#else
inline constexpr const char* kDriverLibrary = "libcuda.so.1";
#endif

class DriverLibrary {
 public:
  // Opens the library and never closes it, because an initialised driver has threads and exit
  // handlers. If the library cannot be opened, is_open() is false and problem() returns the reason.
  explicit DriverLibrary(const char* name);

  bool is_open() const { return handle_ != nullptr; }
  const char* problem() const { return problem_; }

  // Returns the function with this exported name, or null if there is none.
  void* find(const char* name) const;

 private:
  void* handle_;
  const char* problem_ = nullptr;
};

}  // namespace pb::cuda
