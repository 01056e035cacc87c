// The driver's library, opened when it is asked for: nothing links to it.
#pragma once

namespace pb::cuda {

#ifdef _WIN32
inline constexpr const char* kDriverLibrary = "nvcuda.dll";
#else
inline constexpr const char* kDriverLibrary = "libcuda.so.1";
#endif

class DriverLibrary {
 public:
  // Never closed: once started, a driver has threads, and functions to call at the exit. Where it
  // cannot be opened, is_open() is false and problem() says why.
  explicit DriverLibrary(const char* name);

  bool is_open() const { return handle_ != nullptr; }
  const char* problem() const { return problem_; }

  // The function that it exports by this name; null where there is none.
  void* find(const char* name) const;

 private:
  void* handle_;
  const char* problem_ = nullptr;
};

}  // namespace pb::cuda
