// The numbers of IQ4_NL, for kernels too: so no function may be defined here (cpu/kernels.h).
#pragma once

#include <cstdint>

namespace pb {

// The whole number that each code stands for.
inline constexpr int8_t kIq4NlNumbers[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                             1,    13,   25,  38,  53,  69,  89,  113};

}  // namespace pb
