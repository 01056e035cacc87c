#include "cuda/driver/driver_api.h"

#include <atomic>
#include <string_view>

#include "base/error.h"
#include "cuda/driver/driver_library.h"

namespace pb::cuda {
namespace {

std::atomic<const DriverApi*> other_api = nullptr;

}  // namespace

bool is_sticky(Result code) {
  switch (code) {
    case 214:  // ECC_UNCORRECTABLE
    case 226:  // CONTAINED
    case kErrorIllegalAddress:
    case 702:  // LAUNCH_TIMEOUT
    case 710:  // ASSERT
    case 714:  // HARDWARE_STACK_ERROR
    case 715:  // ILLEGAL_INSTRUCTION
    case 716:  // MISALIGNED_ADDRESS
    case 717:  // INVALID_ADDRESS_SPACE
    case 718:  // INVALID_PC
    case 719:  // LAUNCH_FAILED
    case 721:  // TENSOR_MEMORY_LEAK
    case 810:  // MPS_CLIENT_TERMINATED
    case 911:  // EXTERNAL_DEVICE
      return true;
    default:
      return false;
  }
}

DriverApi load_driver_api(const char* name) {
  const DriverLibrary library(name);
  if (!library.is_open()) {
    throw Error(ErrorCode::kConfig,
                std::string("there is no NVIDIA driver (") + library.problem() + ")");
  }
  DriverApi api;
  api.for_each([&]<typename... Args>(DriverFunction<Args...>& function) {
    function.call = reinterpret_cast<Result (*)(Args...)>(library.find(function.name));
    const std::string_view function_name = function.name;
    const bool may_lack =
        function_name == api.get_parameter.name || function_name == api.encode_tensor_map.name;
    if (function.call == nullptr && !may_lack) {
      throw Error(ErrorCode::kConfig,
                  std::string("the NVIDIA driver has no ") + function.name + ": update the driver");
    }
  });
  return api;
}

const DriverApi& driver_api() {
  const DriverApi* const other = other_api.load();
  if (other != nullptr) return *other;
  static const DriverApi system = load_driver_api(kDriverLibrary);
  return system;
}

void use_driver_api(const DriverApi* api) { other_api.store(api); }

std::string describe_error(const DriverApi& api, const char* function, Result code) {
  const auto said = [code](const DriverFunction<Result, const char**>& ask) -> std::string {
    const char* text = nullptr;
    if (ask.call == nullptr || ask.call(code, &text) != kSuccess || text == nullptr) return "";
    return text;
  };
  const std::string name = said(api.error_name);
  const std::string text = said(api.error_text);
  std::string described = std::string(function) + " gave " + std::to_string(code);
  if (!name.empty() || !text.empty()) {
    described += " (" + name + (name.empty() || text.empty() ? "" : ": ") + text + ")";
  }
  return described;
}

}  // namespace pb::cuda
