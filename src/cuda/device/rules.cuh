/* Functions of integers that the host shares (lists/fill_rules.h, plan/schedule.h). Comes before all
 * headers of the host, as instance.cu.in has it. */
#ifndef TESSERA_CUDA_RULES_CUH
#define TESSERA_CUDA_RULES_CUH

#define FILL_RULE static inline __host__ __device__
#define SCHEDULE_RULE static inline __host__ __device__

#endif
