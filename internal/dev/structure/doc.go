// Package structure holds the tests of Cistern's shape, which the compiler does not check:
// imports point down, no file grows without end, files of a package stand in an order, exported
// names are counted and a change of one is seen, names in the documents exist and their programs
// run, and the gates know every stage.
//
// The exported names of each package are recorded in testdata/api. After a change that is meant,
//
//	go test ./internal/dev/structure -update
//
// writes them again. For a removed name, CHANGELOG.md names the replacement.
package structure
