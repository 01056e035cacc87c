#include "check.h"

#include <cstdio>

namespace pb::test {

Registry& Registry::get() {
  static Registry registry;
  return registry;
}

Register::Register(const char* name, void (*body)()) {
  Registry::get().tests.emplace_back(name, body);
}

void fail(const char* file, int line, const char* what) {
  std::printf("%s:%d: %s\n", file, line, what);
  ++Registry::get().failures;
}

void fail(const char* file, int line, const std::string& what) { fail(file, line, what.c_str()); }

void expect_throws(const char* file, int line, const char* text, ErrorCode code,
                   FunctionRef<void()> expression) {
  try {
    expression();
  } catch (const Error& e) {
    if (e.code() != code) fail(file, line, std::string("wrong code: ") + e.what());
    return;
  }
  fail(file, line, std::string(text) + " did not throw");
}

int run_all(int n_arguments, const char* const* arguments) {
  auto& registry = Registry::get();
  size_t part = 1, n_parts = 1, n_run = 0;
  if (n_arguments > 1 &&
      (std::sscanf(arguments[1], "%zu/%zu", &part, &n_parts) != 2 || part < 1 || part > n_parts)) {
    std::printf("%s: the argument is PART/PARTS, as 1/2\n", arguments[1]);
    return 2;
  }
  for (size_t i = part - 1; i < registry.tests.size(); i += n_parts, ++n_run) {
    const auto& [name, body] = registry.tests[i];
    std::printf("%s\n", name);
    body();
  }
  std::printf("%zu tests, %d failures\n", n_run, registry.failures);
  return registry.failures == 0 ? 0 : 1;
}

}  // namespace pb::test
