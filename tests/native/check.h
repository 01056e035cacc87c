// A few lines of test harness: TEST(name) { EXPECT(...); EXPECT_EQ(a, b); EXPECT_THROWS(code,
// expr); } and one `PB_TEST_MAIN()` a file. A failed expectation prints where and what, and the
// test goes on.
#pragma once

#include <cstdio>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace pb::test {

struct Registry {
  std::vector<std::pair<const char*, void (*)()>> tests;
  int failures = 0;
  static Registry& get() {
    static Registry registry;
    return registry;
  }
};

struct Register {
  Register(const char* name, void (*body)()) { Registry::get().tests.emplace_back(name, body); }
};

inline void fail(const char* file, int line, const std::string& what) {
  std::printf("%s:%d: %s\n", file, line, what.c_str());
  ++Registry::get().failures;
}

template <typename A, typename B>
void expect_eq(const char* file, int line, const char* text, const A& a, const B& b) {
  if (a == b) return;
  std::ostringstream out;
  out << text << ": " << a << " is not " << b;
  fail(file, line, out.str());
}

inline int run_all() {
  auto& registry = Registry::get();
  for (const auto& [name, body] : registry.tests) {
    std::printf("%s\n", name);
    body();
  }
  std::printf("%zu tests, %d failures\n", registry.tests.size(), registry.failures);
  return registry.failures == 0 ? 0 : 1;
}

}  // namespace pb::test

#define TEST(name)                                                 \
  static void name();                                              \
  static const ::pb::test::Register register_##name(#name, &name); \
  static void name()

#define EXPECT(condition)                                               \
  do {                                                                  \
    if (!(condition)) ::pb::test::fail(__FILE__, __LINE__, #condition); \
  } while (false)

#define EXPECT_EQ(a, b) ::pb::test::expect_eq(__FILE__, __LINE__, #a " == " #b, (a), (b))

#define EXPECT_THROWS(expected_code, expression)                                      \
  do {                                                                                \
    bool threw = false;                                                               \
    try {                                                                             \
      expression;                                                                     \
    } catch (const ::pb::Error& e) {                                                  \
      threw = true;                                                                   \
      if (e.code() != (expected_code))                                                \
        ::pb::test::fail(__FILE__, __LINE__, std::string("wrong code: ") + e.what()); \
    }                                                                                 \
    if (!threw) ::pb::test::fail(__FILE__, __LINE__, #expression " did not throw");   \
  } while (false)

#define PB_TEST_MAIN() \
  int main() { return ::pb::test::run_all(); }
