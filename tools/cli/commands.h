/* The subcommands of `tessera`: each reads its own arguments (argv[0] is its name) and answers the
 * exit status, after one line on stderr when that is 2. */
#ifndef TOOLS_COMMANDS_H
#define TOOLS_COMMANDS_H

int info_main(int argc, char **argv);
int run_main(int argc, char **argv);
int pattern_main(int argc, char **argv);
int plan_main(int argc, char **argv);
int verify_main(int argc, char **argv);
int gradcheck_main(int argc, char **argv);

#endif
