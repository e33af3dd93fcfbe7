// Package structure holds the tests of Cistern's shape, which the compiler does not check: imports point down, no type and no file
// grows without end, files of the cores stand in an order, a change of an exported name is seen, and the names in docs/architecture.md exist.
//
// The exported names of each package are recorded in docs/api.md. After a change that is meant,
//
//	go test ./internal/structure -update
//
// writes it again; CHANGELOG.md then says what replaces a name that is gone.
package structure
