package main

func (t target) finish() {}

func (t target) vectorProducts() {}
