// Variables of this process's environment, on POSIX and on Windows.
#pragma once

#include <stdlib.h>

namespace pb::test {

inline void set_variable(const char* name, const char* value) {
#ifdef _WIN32
  _putenv_s(name, value);
#else
  setenv(name, value, 1);
#endif
}

inline void unset_variable(const char* name) {
#ifdef _WIN32
  _putenv_s(name, "");
#else
  unsetenv(name);
#endif
}

}  // namespace pb::test
