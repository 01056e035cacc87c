#include "model/input_order.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"

namespace pb {
namespace {

[[noreturn]] void refuse(const TensorView& view, const std::string& why) {
  throw Error(ErrorCode::kModelFormat, "tensor '" + view.name + "' " + why);
}

}  // namespace

bool same_order(const TensorView& a, const TensorView& b) {
  if (a.order == b.order) return true;
  return a.order && b.order && *a.order == *b.order;
}

AlignedBuffer input_order(const TensorView& view) {
  if (!view.order) return {};
  const std::vector<int32_t>& order = *view.order;
  if (static_cast<int64_t>(order.size()) != view.cols) {
    refuse(view, "has an order of " + std::to_string(order.size()) + " inputs; expected one of " +
                     std::to_string(view.cols));
  }
  std::vector<bool> is_there(order.size());
  for (const int32_t input : order) {
    if (input < 0 || input >= view.cols || is_there[static_cast<size_t>(input)]) {
      refuse(view, "has an order of its inputs with " + std::to_string(input) +
                       "; expected every number from 0 to " + std::to_string(view.cols - 1) +
                       " once");
    }
    is_there[static_cast<size_t>(input)] = true;
  }
  AlignedBuffer buffer(order.size() * sizeof(int32_t));
  std::memcpy(buffer.as<std::byte>(), order.data(), buffer.bytes());
  return buffer;
}

void refuse_order(const TensorView& view, const char* what) {
  if (!view.order) return;
  refuse(view, std::string("has an order of its inputs; expected none, for ") + what +
                   " takes them as they come");
}

void refuse_blocks(const TensorView& view, const char* what) {
  if (!view.make && !is_quantised(view.dtype)) return;
  refuse(view, std::string("is quantised; expected f32, f16 or bf16, as ") + what +
                   " is read number by number");
}

}  // namespace pb
