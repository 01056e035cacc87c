// Formats memory sizes for messages.
#pragma once

#include <cstddef>
#include <string>

namespace pb {

// Returns a text like "1.50 GiB".
std::string size_text(size_t bytes);

}  // namespace pb
