/* `tessera bench`: times backends and pipelines on case strings. */
#ifndef BENCH_H
#define BENCH_H

/* argv[0] is the subcommand's name. Answers the exit status: 0 done, 1 a wrong answer or a
 * published entry that is not beaten, 2 bad use or bad input, the latter after one line on
 * stderr. */
int bench_main(int argc, char **argv);

#endif
