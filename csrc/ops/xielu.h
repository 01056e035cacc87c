// The parameters of the xIELU activation, which the interfaces of operations and of kernels use.
#pragma once

namespace pb {

// The activation f of a layer (Huang and Schlag 2024, "Deriving Activation Functions Using
// Integration", arXiv:2411.13010). With the two learned numbers alpha_p and alpha_n,
//   f(x) = alpha_p x^2 + beta x                           for x > 0
//   f(x) = alpha_n (expm1(min(x, eps)) - x) + beta x      else, and for NaN.
struct Xielu {
  float alpha_p;
  float alpha_n;
  float beta;
  float eps;
};

}  // namespace pb
