// Package structure tests the structure of the module, which the compiler does not check: imports
// point down, files stay short, references between the files of a package run down, exported names
// are counted and their changes are visible, names in the documents exist and their programs run,
// and the gates contain every stage.
//
// testdata/api records the exported names of each package. After an intended change,
//
//	go test ./internal/dev/structure -update
//
// writes them again. For a removed name, CHANGELOG.md names the replacement.
package structure
