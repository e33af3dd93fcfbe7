// Package backend is what the backends of package device have in common: the errors that each gives for the same
// mistake, with the same words, and how calls, handles of a driver and what is left at the end are counted. What differs
// stays with them: each keeps its own table of memory, since host looks memory up where the race detector sees nothing,
// null under one lock, and cuda without any.
package backend
