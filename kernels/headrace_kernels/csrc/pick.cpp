#include "pick.h"

#include "agreement.h"
#include "processor.h"

namespace avx2 {
extern const Isa ISA;
}
namespace avx512 {
extern const Isa ISA;
}
namespace avx512bf16 {
extern const Isa ISA;
}

namespace {

struct Candidate {
    const char* key;
    const Isa& isa;
    bool (*runs)();
};

// The fastest first, as measured: vdpbf16ps multiplied at 0.5 to 0.75 of the rate of two fused float32 products.
const Candidate CANDIDATES[] = {
    {"avx512", avx512::ISA, has_avx512},
    {"avx512bf16", avx512bf16::ISA, has_avx512_bf16},
    {"avx2", avx2::ISA, has_avx2},
};

}  // namespace

const Isa* pick(const char* key, std::string& refused) {
    refused.clear();
    for (const Candidate& candidate : CANDIDATES) {
        if ((key && std::string(key) != candidate.key) || !candidate.runs()) continue;
        if (&candidate.isa == &avx2::ISA || agree(candidate.isa, avx2::ISA)) return &candidate.isa;
        refused += (refused.empty() ? "" : ", ") + std::string(candidate.isa.name);
    }
    return nullptr;
}
