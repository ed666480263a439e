/* Texts for SPEC and for CASE in the options of several subcommands. */
#ifndef TOOLS_REFERENCE_H
#define TOOLS_REFERENCE_H

/* The terms of a SPEC, a line each. */
extern const char reference_spec[];

/* Filters of argp's help: put the reference behind what a command says of itself. */
char *reference_spec_filter(int key, const char *text, void *input);
char *reference_case_filter(int key, const char *text, void *input);

#endif
