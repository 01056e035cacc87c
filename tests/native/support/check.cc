#include "check.h"

#include <cstdio>
#include <cstdlib>
#include <string_view>

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

int run_all() {
  auto& registry = Registry::get();
  const char* part = std::getenv("PYBATCHER_TEST_NAMES");
  size_t n_run = 0;
  for (const auto& [name, body] : registry.tests) {
    if (part != nullptr && std::string_view(name).find(part) == std::string_view::npos) continue;
    std::printf("%s\n", name);
    body();
    ++n_run;
  }
  std::printf("%zu tests, %d failures\n", n_run, registry.failures);
  return registry.failures == 0 && n_run > 0 ? 0 : 1;
}

}  // namespace pb::test
