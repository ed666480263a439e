/* Wall-clock time. */
#ifndef LAB_TIMER_H
#define LAB_TIMER_H

/* Seconds from some fixed point; never runs backwards. */
double lab_seconds(void);

#endif
