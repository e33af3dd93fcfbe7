// Package hostop is the backend of devices whose memory the host can access. It runs operations
// with the Go functions of package kernel.
//
// A table has a function for each operation and dtype; an operation with an empty cell is
// unsupported. The memory that a function reads and writes follows from the roles of its operands,
// so that functions don't deal with streams.
package hostop
