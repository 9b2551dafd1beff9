-- nbdev links every word in backticks that is the name of something in the package: `code`, `window`, `names`. On its own module's
-- page that is what is meant; on another page only where it can mean nothing else: a class, a dotted name, a call. A method that
-- has no heading of its own is told with its class, so its link leads there.
local here = pandoc.path.split_extension(pandoc.path.filename(quarto.doc.input_file)):gsub("^%d+%a*_", "")

function Link(link)
  local word = link.content[1]
  local module = link.target:match("([%w_]+)%.html#")
  if #link.content ~= 1 or word.t ~= "Code" or not module then return nil end
  if module ~= here and not word.text:match("[%u%.%(]") then return word end
  link.target = link.target:gsub("(#[%w_]+)%.[%w_]+$", "%1")
  return link
end
