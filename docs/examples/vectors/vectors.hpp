// Reads vectors of `attention-conformance vectors write DIR`: C++17, this header only. A file that is none throws.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace vectors {

struct Array {
  std::string dtype;             // "F64", "F32", "BOOL", ...
  std::vector<std::size_t> shape;
  std::vector<char> bytes;

  template <typename Number> std::vector<Number> as() const {
    std::vector<Number> numbers(bytes.size() / sizeof(Number));
    std::memcpy(numbers.data(), bytes.data(), bytes.size());
    return numbers;
  }
};

struct Vector {
  std::map<std::string, std::string> fields;  // JSON texts, such as fields["causal"] == "true"
  std::map<std::string, Array> arrays;
};

class Header {  // The part of JSON that a header needs: objects, strings, and lists of natural numbers.
 public:
  explicit Header(std::string given) : text(std::move(given)) {}

  bool take(char c) {
    while (at < text.size() && std::strchr(" \n\t", text[at])) at++;
    return at < text.size() && text[at] == c && ++at;
  }
  void expect(char c) {
    if (!take(c)) throw std::runtime_error("this is no file of a vector");
  }
  std::string string() {
    std::string found;
    for (expect('"'); at < text.size() && text[at] != '"'; at++) found += text[at] == '\\' ? text[++at] : text[at];
    expect('"');
    return found;
  }
  std::vector<std::size_t> numbers() {
    std::vector<std::size_t> found;
    expect('[');
    for (bool more = !take(']'); more; more = !take(']')) {
      take(',');
      std::size_t length = 0;
      found.push_back(std::stoull(text.substr(at), &length));
      at += length;
    }
    return found;
  }
  template <typename Member> void object(Member member) {
    expect('{');
    for (bool more = !take('}'); more; more = !take('}')) {
      take(',');
      std::string name = string();
      expect(':');
      member(name);
    }
  }

 private:
  std::string text;
  std::size_t at = 0;
};

inline Vector read(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(stream), {}};
  std::uint64_t length = 0;
  if (all.size() < 8) throw std::runtime_error("this is no file of a vector");
  std::memcpy(&length, all.data(), 8);
  Vector vector;
  Header header(all.substr(8, length));
  header.object([&](const std::string& name) {
    if (name == "__metadata__") {
      header.object([&](const std::string& field) { vector.fields[field] = header.string(); });
      return;
    }
    Array& array = vector.arrays[name];
    header.object([&](const std::string& part) {
      if (part == "dtype") {
        array.dtype = header.string();
      } else if (part == "shape") {
        array.shape = header.numbers();
      } else {
        const auto range = header.numbers();
        array.bytes.assign(all.begin() + 8 + length + range.at(0), all.begin() + 8 + length + range.at(1));
      }
    });
  });
  return vector;
}

// NaN and infinity have to be the same; any other number may be off by its bound.
template <typename Number> bool holds(const Vector& vector, const std::vector<Number>& got) {
  const auto expected = vector.arrays.at("expected.output").as<double>();
  const auto bound = vector.arrays.at("bound.output").as<double>();
  bool all = got.size() == expected.size();
  for (std::size_t i = 0; all && i < got.size(); i++) {
    const double number = got[i];
    const bool same = number == expected[i] || (std::isnan(number) && std::isnan(expected[i]));
    all = same || std::abs(number - expected[i]) <= bound[i];
  }
  return all;
}

}  // namespace vectors
