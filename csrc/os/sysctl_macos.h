// Reads facts about the machine by sysctl on macOS.
#pragma once

#ifdef __APPLE__
#include <sys/sysctl.h>

#include <string>

namespace pb {

// Returns the value of a name with an int value ("hw.physicalcpu"); 0 if there is no such name.
inline int sysctl_number(const std::string& name) {
  int value = 0;
  size_t bytes = sizeof(value);
  return sysctlbyname(name.c_str(), &value, &bytes, nullptr, 0) == 0 ? value : 0;
}

}  // namespace pb
#endif
