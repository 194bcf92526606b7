// Judges an attention in C++ by vectors: c++ -std=c++17 -O2 attention.cpp -o attention && ./attention DIR
#include <algorithm>
#include <filesystem>
#include <iostream>

#include "vectors.hpp"

using Floats = std::vector<float>;

static Floats attention(const vectors::Vector& given) {
  const auto &query = given.arrays.at("query"), &key = given.arrays.at("key"), &value = given.arrays.at("value");
  const auto q = query.as<float>(), k = key.as<float>(), v = value.as<float>();
  const std::size_t rows = query.shape[0] * query.shape[1] * query.shape[2], lq = query.shape[2], dk = query.shape[3];
  const std::size_t lk = key.shape[2], dv = value.shape[3];
  const std::string scale = given.fields.at("scale");
  const double factor = scale == "null" ? 1.0 / std::sqrt(double(dk)) : std::stod(scale);
  Floats output(rows * dv);
  for (std::size_t row = 0; row < rows; row++) {
    const std::size_t head = row / lq, seen = given.fields.at("causal") == "true" ? std::min(lk, row % lq + 1) : lk;
    std::vector<double> weights(seen), mean(dv);
    double top = -INFINITY, sum = 0;
    for (std::size_t j = 0; j < seen; j++) {
      for (std::size_t c = 0; c < dk; c++) weights[j] += factor * q[row * dk + c] * k[(head * lk + j) * dk + c];
      top = std::max(top, weights[j]);
    }
    for (double& weight : weights) sum += weight = std::exp(weight - top);
    for (std::size_t j = 0; j < seen; j++)
      for (std::size_t c = 0; c < dv; c++) mean[c] += weights[j] / sum * v[(head * lk + j) * dv + c];
    std::copy(mean.begin(), mean.end(), output.begin() + row * dv);
  }
  return output;
}

int main(int, char** arguments) {
  int hold = 0, fail = 0, unsupported = 0;
  for (const auto& entry : std::filesystem::directory_iterator(arguments[1])) {
    if (entry.path().extension() != ".safetensors") continue;
    const auto vector = vectors::read(entry.path().string());
    if (vector.arrays.count("attn_mask") || vector.fields.at("refused") == "true")
      unsupported++;
    else
      vectors::holds(vector, attention(vector)) ? hold++ : fail++;
  }
  std::cout << hold << " hold, " << fail << " fail, " << unsupported << " are not supported\n";
  return fail ? 1 : 0;
}
