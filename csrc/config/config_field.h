// The macros and types by which rows of config_fields.def declare the scalar fields of a
// configuration.
#pragma once

#include <array>
#include <limits>
#include <optional>

namespace pb {

// The names of the values of an enumeration T, in the order of the enumeration. Empty for other
// types.
template <typename T>
inline constexpr std::array<const char*, 0> kChoices{};

// The range of the numbers that a field may have. A float must also be finite.
struct FieldRange {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool excludes_low = false;
};

// A row of config_fields.def. `fallback` is the default value; it is empty if the field is
// required.
template <typename T>
struct ConfigField {
  const char* name;
  std::optional<T> fallback;
  FieldRange range;
  const char* meaning;
};

// Stands for the default value of a field that has none, because Python must set the field.
struct Required {
  template <typename T>
  constexpr operator T() const {
    return T{};
  }
};
inline constexpr Required required;

// The names that config_fields.def uses for ranges.
namespace config_rows {

inline constexpr FieldRange any = {};
constexpr FieldRange between(double low, double high) { return {.low = low, .high = high}; }
constexpr FieldRange at_least(double low) { return {.low = low}; }
constexpr FieldRange above(double low) { return {.low = low, .excludes_low = true}; }

template <typename T>
std::optional<T> fallback_of(const T& value) {
  return value;
}
template <typename T>
std::optional<T> fallback_of(Required) {
  return std::nullopt;
}

}  // namespace config_rows

#define PB_DECLARE_FIELD(type, name, fallback, range, meaning) type name = fallback;
#define PB_VISIT_FIELD(type, name, fallback, range, meaning) \
  visit(ConfigField<type>{#name, fallback_of<type>(fallback), range, meaning}, self.name);

// Declares the members of a struct from its rows. Also declares visit_fields(), which calls
// visit(const ConfigField<T>&, T& member of `self`) for each row.
#define PB_CONFIG_FIELDS(ROWS)                          \
  ROWS(PB_DECLARE_FIELD)                                \
  template <typename Self, typename Visit>              \
  static void visit_fields(Self& self, Visit&& visit) { \
    using namespace config_rows;                        \
    ROWS(PB_VISIT_FIELD)                                \
  }

}  // namespace pb
