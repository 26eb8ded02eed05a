// The token stands behind the # of the link, which no browser sends. It goes into a header once; a cookie comes back.
"use strict";

const token = location.hash.slice(1);
history.replaceState(null, "", location.pathname);
fetch("./", { headers: { Authorization: `Bearer ${token}` } }).then(answer => {
  if (answer.ok) location.replace("./");
  else document.getElementById("state").textContent = "This link is not valid any more: take that of the running server.";
});
