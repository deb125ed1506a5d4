.PHONY: conformance test lint env lock clean
conformance test lint env lock clean:
	./x $@ $(ARGS)
