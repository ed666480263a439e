/* The cases that `tessera verify` makes up: small, and spread over everything a case can say. */
#ifndef TOOLS_SWEEP_H
#define TOOLS_SWEEP_H

#include "lab/case/case.h"

/* Case `number` of the sweep with this seed. Patterns, types, blocks and head dims take turns, so
 * that any few hundred cases in a row meet all of them; the rest is drawn. Every fifth has lists on
 * the device. */
struct lab_case sweep_case(uint64_t seed, int64_t number);

/* Case `number` of those with lists on the device alone. Forms, types and head dims take turns. */
struct lab_case sweep_lists_case(uint64_t seed, int64_t number);

/* Case `number` of MLPs alone. Types, caches and activations take turns. */
struct lab_case sweep_mlp_case(uint64_t seed, int64_t number);

#endif
