// A few lines of test harness: TEST(name) { EXPECT(...); EXPECT_EQ(a, b); EXPECT_THROWS(code,
// expr); } and one `PB_TEST_MAIN()` a file. A failed expectation prints where and what, and the
// test goes on.
#pragma once

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/function_ref.h"

namespace pb::test {

struct Registry {
  std::vector<std::pair<const char*, void (*)()>> tests;
  int failures = 0;
  static Registry& get();
};

struct Register {
  Register(const char* name, void (*body)());
};

void fail(const char* file, int line, const std::string& what);
void fail(const char* file, int line, const char* what);

// Calls `expression`, which is to throw an Error of this code.
void expect_throws(const char* file, int line, const char* text, ErrorCode code,
                   FunctionRef<void()> expression);

template <typename A, typename B>
void expect_eq(const char* file, int line, const char* text, const A& a, const B& b) {
  if (a == b) return;
  std::ostringstream out;
  out << text << ": " << a << " is not " << b;
  fail(file, line, out.str());
}

// Runs all tests of the program; with the argument "i/n", each n-th from the i-th on. Returns its
// exit status: 0 if no expectation failed.
int run_all(int n_arguments, const char* const* arguments);

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

#define EXPECT_THROWS(expected_code, expression) \
  ::pb::test::expect_throws(__FILE__, __LINE__, #expression, (expected_code), [&] { expression; })

#define PB_TEST_MAIN()                                  \
  int main(int n_arguments, char** arguments) {         \
    return ::pb::test::run_all(n_arguments, arguments); \
  }
