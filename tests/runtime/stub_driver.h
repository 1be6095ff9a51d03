// What a test sees of a stub driver library (stub_driver.cpp): the calls it recorded, and what it shall answer.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

// What the driver answers.
struct StubAnswers {
    std::map<std::string, int> results;  // by symbol; absent: 0
    std::map<int, int> attributes;       // by the vendor's attribute number
    int device_count = 1;
    int driver_version = 0;
    int static_shared_bytes = 0;
    int capture_status = 0;
    std::string device_name = "Stub GPU";
    std::string architecture;  // HIP: gcnArchName
};

struct StubDriver {
    std::mutex mutex;
    std::vector<std::string> calls;  // "cuInit 0", in order
    StubAnswers answers;
};

// Exported by every stub library.
extern "C" StubDriver* stub_driver();
