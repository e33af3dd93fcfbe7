// Command vector generates the assembly of package simd's vector functions. "go generate" in that
// package runs it, once for each family of functions.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/mmcloughlin/avo/build"
)

// families lists the families of functions by name.
var families = map[string]func(){
	"arithmetic": arithmetic,
	"exp":        exponentials,
	"step":       steps,
	"function":   functions,
	"random":     random,
	"sum":        sums,
	"row":        rows,
}

func main() {
	family := flag.String("family", "", "the family of functions to generate")
	amd64 := flag.String("dispatch", "", "the file for the Go functions that call all assembly; if set, no assembly is written")
	other := flag.String("other", "", "the file for the same functions on other processors")
	flag.Parse()
	if *amd64 != "" {
		dispatch(*amd64, *other)
		return
	}
	generate, ok := families[*family]
	if !ok {
		fmt.Fprintf(os.Stderr, "there is no family %q\n", *family)
		os.Exit(2)
	}
	build.ConstraintExpr("!purego")
	generate()
	build.Generate()
}
