// Command vector generates the assembly of package simd's vector functions: "go generate" in that package runs it, once for each
// family of functions.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/mmcloughlin/avo/build"
)

// families are what is generated, by name.
var families = map[string]func(){
	"arithmetic": arithmetic,
	"exp":        exponentials,
	"step":       steps,
}

func main() {
	family := flag.String("family", "", "which functions to generate")
	flag.Parse()
	generate, ok := families[*family]
	if !ok {
		fmt.Fprintf(os.Stderr, "no family %q\n", *family)
		os.Exit(2)
	}
	build.ConstraintExpr("!purego")
	generate()
	build.Generate()
}
