#include "base/size_text.h"

#include <cstdio>

namespace pb {

std::string size_text(size_t bytes) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024.0 && unit < 3; ++unit) value /= 1024.0;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits[unit]);
  return text;
}

}  // namespace pb
