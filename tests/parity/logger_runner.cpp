// Logs what a job file describes. tests/parity/test_loggers.py reads the result with the peers.
//
//   logger_runner JOB.json
//
// Job: "folder"; "calls", in order: {"metrics": {...}, "step": n}, {"hyperparams": {...}}, {"resume_from":
//      n}, {"restart": true} (new loggers in the same folder), {"finalize": "status"}. Numbers that JSON
//      lacks are the strings "nan", "inf", "-inf".
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "mantissa/trainer/loggers/csv_logger.h"
#include "mantissa/trainer/loggers/json_lines_logger.h"
#include "mantissa/trainer/loggers/tensorboard_logger.h"

namespace {

using Json = nlohmann::json;

double number(const Json& json) {
  return json.is_string() ? std::stod(json.get<std::string>()) : json.get<double>();
}

mantissa::Hyperparameter hyperparameter(const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  return json.get<std::string>();
}

void run(const Json& job) {
  const std::string folder = job.at("folder");
  std::vector<std::unique_ptr<mantissa::Logger>> loggers;
  const auto start = [&] {
    loggers.clear();
    loggers.push_back(std::make_unique<mantissa::CSVLogger>(folder));
    loggers.push_back(std::make_unique<mantissa::JSONLinesLogger>(folder));
    loggers.push_back(std::make_unique<mantissa::TensorBoardLogger>(folder));
  };
  start();
  for (const Json& call : job.at("calls")) {
    if (call.contains("restart")) start();
    for (const auto& logger : loggers) {
      if (call.contains("metrics")) {
        mantissa::MetricValues metrics;
        for (const auto& [name, value] : call["metrics"].items()) metrics.emplace(name, number(value));
        logger->log_metrics(std::move(metrics), call.at("step"));
      } else if (call.contains("hyperparams")) {
        mantissa::Hyperparameters params;
        for (const auto& [name, value] : call["hyperparams"].items()) params[name] = hyperparameter(value);
        logger->log_hyperparams(params);
      } else if (call.contains("resume_from")) {
        logger->resume_from(call["resume_from"]);
      } else if (call.contains("finalize")) {
        logger->finalize(call["finalize"]);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    run(Json::parse(std::ifstream(argv[1])));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "logger_runner: %s\n", error.what());
    return 1;
  }
  return 0;
}
