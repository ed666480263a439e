/* Identities of gradients, which hold at any size: what can be checked where an oracle takes too long. */
#ifndef LAB_IDENTITIES_H
#define LAB_IDENTITIES_H

#include "lab/run/setting.h"

/*
 * Checks gradients that a backward left in setting->wanted, for each key/value head, as far as the case
 * wants them:
 *
 *     sum_i q_i . dQ_i = sum_j k_j . dK_j        both are the sum of dS_ij times its scaled score
 *     sum_j dV_j = sum_i dO_i                    over queries that list a key; no sinks, no dropout
 *
 * q, k and d_o are finite. 0; -1 and which does not hold.
 */
int lab_identities_hold(const struct lab_setting *setting, char why[LAB_WHY]);

#endif
