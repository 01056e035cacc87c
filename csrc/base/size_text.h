// Formats sizes of memory for messages.
#pragma once

#include <cstddef>
#include <string>

namespace pb {

// "1.50 GiB"
std::string size_text(size_t bytes);

}  // namespace pb
