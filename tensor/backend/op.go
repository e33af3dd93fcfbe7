package backend

import "strings"

// Op is an operation. The numbers of a family's operations follow each other in the order of its
// names, which is that of the codes of GPU kernels; package gen writes them.
type Op uint16

// Role is what an operation does with an operand.
type Role uint8

// An operand is read, overwritten, or both: Update is also the role of one that the operation
// writes in part.
const (
	Read Role = 1 << iota
	Write
	Update = Read | Write
)

// Family are operations with the same operands, plan and parameters: a row of the table.
type Family uint8

// row is an operation in the table.
type row struct {
	name   string
	family Family
	code   int    // within the family
	roles  []Role // of Call.Args
	list   []Role // of each element of Call.List
	base   Op     // what the runtime does instead, and then the rest, if a backend does not support the operation
}

// rows are the operations, after one that is none; firsts the first one of each family.
var rows, firsts = func() (all []row, firsts []Op) {
	all = make([]row, 1)
	byName := map[string]Op{}
	for f, family := range families {
		firsts = append(firsts, Op(len(all)))
		args, list, _ := strings.Cut(family.operands, "|")
		for code, name := range strings.Split(family.ops, "; ") {
			byName[name] = Op(len(all))
			all = append(all, row{name, Family(f), code, roles(args), roles(list), NoOp})
		}
	}
	for i := range all[1:] {
		r := &all[1+i]
		r.base = byName[families[r.family].base]
	}
	return all, firsts
}()

// roles parses a list of operands: those with = are written, with + updated, and the others read.
func roles(operands string) (all []Role) {
	for _, operand := range strings.Fields(operands) {
		role := Read
		switch operand[0] {
		case '=':
			role = Write
		case '+':
			role = Update
		}
		all = append(all, role)
	}
	return all
}

// Name is the operation's name in errors, launches and profiles.
func (o Op) Name() string { return rows[o].name }

// Family is the operation's.
func (o Op) Family() Family { return rows[o].family }

// Code is the operation's number within its family.
func (o Op) Code() int { return rows[o].code }

// Roles are those of the operands, in their order.
func (o Op) Roles() []Role { return rows[o].roles }

// ListRoles are those of the operands of each item of a list.
func (o Op) ListRoles() []Role { return rows[o].list }

// Base is the operation that a fusion takes the place of, together with others; NoOp for what is no
// fusion.
func (o Op) Base() Op { return rows[o].base }

// Rounds reports whether later parts of a fusion read what its earlier parts round. In a narrow
// dtype such a fusion is computed natively or in parts.
func (o Op) Rounds() bool { return families[rows[o].family].rounds }

// Of is the operation of the family with a code.
func (f Family) Of(code int) Op { return firsts[f] + Op(code) }

// All are the operations of the family.
func (f Family) All() (all []Op) {
	for op := firsts[f]; int(op) < len(rows) && rows[op].family == f; op++ {
		all = append(all, op)
	}
	return all
}

// NoOp is the number of no operation.
const NoOp Op = 0
